"""A containerd runtime-v2 shim and the manager around it, on Trio."""
