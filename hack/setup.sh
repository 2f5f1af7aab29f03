#!/usr/bin/env bash
# Brings uv (when missing) and the locked Python environment in .venv. Safe to run again; quick when nothing changed.
# Arguments go to `uv sync` (`--group bench`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/muster"

python=
for candidate in python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        # The interpreter itself: what stands in PATH may start it (pyenv), or be of another environment, and uv takes an
        # environment that was made from another path for one to be made anew.
        python=$("$candidate" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)')
        break
    fi
done
if [ -z "$python" ]; then
    echo "muster: no Python 3.11 or newer found: install it (Debian: apt-get install python3) and run this again" >&2
    exit 1
fi

if command -v uv >/dev/null; then
    uv=uv
else
    uv="$cache/uv/bin/uv"
    if [ ! -x "$uv" ]; then
        echo "muster: installing uv into $cache/uv"
        if ! "$python" -m pip --version >/dev/null 2>&1; then
            if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
                echo "muster: neither uv nor pip found: install one of them (Debian: apt-get install python3-pip)" >&2
                exit 1
            fi
            DEBIAN_FRONTEND=noninteractive apt-get -qq update
            DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends python3-pip >/dev/null
        fi
        rm -rf "$cache/uv.new"
        mkdir -p "$cache"
        "$python" -m pip install -q --root-user-action=ignore --target "$cache/uv.new" uv
        rm -rf "$cache/uv"
        mv "$cache/uv.new" "$cache/uv"
    fi
fi

started=$SECONDS
if [ ! -d .venv ]; then
    echo "muster: bringing the Python environment, with PyTorch, into .venv (once; some minutes where it must be fetched)"
fi
"$uv" sync --quiet --locked --python "$python" "$@"
if ((SECONDS - started > 5)); then
    echo "muster: Python environment ready in .venv ($((SECONDS - started)) s)"
fi
