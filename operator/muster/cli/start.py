"""Where the command begins. It imports nothing of ours until Ctrl-C is quiet: the imports take a second and more, and
a traceback out of them tells a user nothing."""

from __future__ import annotations

import signal


def main() -> None:
    """Ctrl-C ends the process at once while it imports, since nothing is begun yet; from then on the commands answer.

    Whoever starts it with SIGINT ignored, as `nohup` or a shell's background does, has it stay ignored.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from muster.cli.app import main as run

    signal.signal(signal.SIGINT, before)
    run()
