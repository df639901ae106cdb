"""Model families: configuration, rotary tables, decoders."""
