"""A failure's words in the 4096 bytes that kubelet keeps: what tells most stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster_protocol import exits
from muster_protocol.exits import Cause, ExitFacts
from muster_protocol.shortening import shortened

pytestmark = pytest.mark.unit

FRAMES = """Traceback (most recent call last):
  File "/workspace/train.py", line 41, in <module>
    model.load_state_dict(state)
  File "/opt/torch/nn/modules/module.py", line 2581, in load_state_dict
    raise RuntimeError(
"""


def told(message: str, traceback: str) -> ExitFacts:
    text = exits.encode(ExitFacts(Cause.USER, 1, message, traceback=traceback))
    assert len(text.encode()) <= exits.TERMINATION_MESSAGE_LIMIT
    facts = exits.decode(text)
    assert facts is not None
    return facts


def test_of_a_model_that_does_not_fit_its_state_the_script_s_line_and_the_first_keys_are_told() -> None:
    missing = ", ".join(f'"layers.{layer}.attention.weight"' for layer in range(200))
    error = "RuntimeError: Error(s) in loading state_dict for M:"
    keys = f"\tMissing key(s) in state_dict: {missing}. \n\tUnexpected key(s) in state_dict: {missing}. "
    facts = told(f"rank 0 exited with code 1: {error}", f"{FRAMES}{error}\n{keys}")
    for part in ("train.py", "line 41", error, 'Missing key(s) in state_dict: "layers.0.', "Unexpected key(s)"):
        assert part in facts.traceback
    sizes = "\n".join(f"\tsize mismatch for layers.{layer}.weight: copying a param {'x' * 150}" for layer in range(40))
    facts = told(error, f"{FRAMES}{error}\n{sizes}")
    for part in ("train.py", error, "size mismatch for layers.0.", "\n  …\n", "layers.39."):
        assert part in facts.traceback


def test_a_message_of_one_line_that_has_no_end_keeps_what_was_raised() -> None:
    line = f"RuntimeError: the batch was [{'0.123, ' * 20_000}0.5]"
    facts = told(f"rank 0 exited with code 1: {line}", f"{FRAMES}{line}")
    assert facts.message.startswith("rank 0 exited with code 1: RuntimeError: the batch was [0.123")
    assert facts.message.endswith("0.5]")


def test_frames_go_from_the_middle() -> None:
    frames = "\n".join(f'  File "/workspace/deep.py", line {line}, in step\n    call()' for line in range(200))
    facts = told("it failed", f"Traceback (most recent call last):\n{frames}\nValueError: no end")
    assert facts.traceback.startswith('Traceback (most recent call last):\n  File "/workspace/deep.py", line 0,')
    assert facts.traceback.endswith("line 199, in step\n    call()\nValueError: no end")


@given(st.text(alphabet="ab\n …", max_size=900), st.integers(0, 400))
def test_it_is_never_longer_and_never_another_text_that_fits(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= most
    assert short == text or len(text) > most
