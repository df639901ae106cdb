"""Start of a process: options, secrets, ports and the files of a model. Each failure is a ``StartupError``."""
