"""Looks at every visible GPU and prints what it finds as JSON; a process of its own (`figures`)."""

from __future__ import annotations

import json
import re
from typing import Any, Final

SIZE: Final = 4096
ROUNDS: Final = 10


_THE_IMAGES: Final = re.compile("driver.* is (too old|insufficient)|no kernel image|not compiled", re.IGNORECASE)
"""Errors of a torch that doesn't go with the driver or the GPU: the ranks will tell them, and no node is broken."""


def main() -> None:
    print(json.dumps(found()))


def found() -> dict[str, Any]:
    """`error`, or what each GPU shows; nothing where this torch tells nothing of them."""
    try:
        import torch
    except ImportError:
        return {"error": "", "gpus": []}
    if torch.version.cuda is None:
        return {"error": "", "gpus": []}
    gpus = list[dict[str, Any]]()
    try:
        for number in range(torch.cuda.device_count()):
            gpus.append(look(torch, torch.device("cuda", number)))
        if not gpus:
            torch.cuda.init()  # type: ignore[no-untyped-call] # says why
    except RuntimeError as failure:
        told = str(failure).splitlines()[0]
        return {"error": "" if _THE_IMAGES.search(told) else f"GPU {len(gpus)}: {told}", "gpus": []}
    return {"error": "", "gpus": gpus}


def look(torch: Any, device: Any) -> dict[str, Any]:
    """Free and whole memory in bytes, and how fast the GPU multiplies bf16 matrices. Raises RuntimeError."""
    free, memory = torch.cuda.mem_get_info(device)
    matrix = torch.ones(SIZE, SIZE, device=device, dtype=torch.bfloat16)
    for _ in range(3):
        matrix @ matrix
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        begin.record()
        for _ in range(ROUNDS):
            product = matrix @ matrix
        end.record()
        torch.cuda.synchronize(device)
    if product[0, 0].item() != SIZE or product[-1, -1].item() != SIZE:
        raise RuntimeError("it multiplies wrongly: ones times ones gave something else")
    seconds = begin.elapsed_time(end) / 1000
    return {"memory": memory, "free": free, "tflops": ROUNDS * 2 * SIZE**3 / seconds / 1e12}


if __name__ == "__main__":
    main()
