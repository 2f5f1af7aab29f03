"""For all tests: none waits for ever, whatever becomes of it."""

pytest_plugins = ["hack.stuck"]
