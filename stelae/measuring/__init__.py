"""What a running cluster or this machine can do, measured: ``stelae bench``, ``stelae plan
--calibrate``."""
