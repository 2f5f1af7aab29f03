"""One file a step. A step only adds, with defaults: an operator of the version before goes on writing what it knows."""
