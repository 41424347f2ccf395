"""The proof of context parallelism: the kernel on each rank's keys, the exchange, the merge, against one GPU."""
