"""Stands in front of PyTorch in the processes that tests start: tensorboardX imports it wherever it is installed."""

raise ImportError("hidden from the commands under test, which take three seconds longer to start beside it")
