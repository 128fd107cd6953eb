"""Tasks that are independent of each other, run at once: in processes of this machine, or on a Ray cluster."""
