"""Operations of the model on one device: one interface, a backend for each kind of device."""
