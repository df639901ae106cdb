"""Start an engine: plan it from headers, settings and the machine, then load and warm it up."""
