"""The server and the client: HTTP and gRPC in front, engines in processes of their own behind. No torch in front."""

import os

# gRPC's core reads this when it is imported, and writes to standard error past Python's logging: it would copy what a peer
# sends (the text of a GOAWAY frame, newlines and escapes included) into the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
