"""Pure functions on tensors: no configuration, no device, no files, no logging."""
