"""Start-up of an engine: a plan from headers, settings and the machine, then the load and the warm-up."""
