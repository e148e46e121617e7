"""The one exception for requests that are refused, with the status codes of both protocols."""

import grpc


class Refused(Exception):  # noqa: N818 - an answer, not a mistake of ours
    """A request that cannot be served: the HTTP status, the gRPC code and one sentence."""

    status = 400
    code = grpc.StatusCode.INVALID_ARGUMENT
    outcome = "invalid"


class Forbidden(Refused):
    status, code, outcome = 403, grpc.StatusCode.PERMISSION_DENIED, "invalid"


class NotFound(Refused):
    status, code, outcome = 404, grpc.StatusCode.NOT_FOUND, "invalid"


class TooLarge(Refused):
    status, code, outcome = 413, grpc.StatusCode.RESOURCE_EXHAUSTED, "invalid"


class Unsupported(Refused):
    status, code, outcome = 415, grpc.StatusCode.UNIMPLEMENTED, "invalid"


class TooSlow(Refused):
    """The client took too long to send its request."""

    status, code, outcome = 408, grpc.StatusCode.DEADLINE_EXCEEDED, "timeout"


class Misdirected(Refused):
    """The request was meant for a server of another name."""

    status, code, outcome = 421, grpc.StatusCode.PERMISSION_DENIED, "invalid"


class Overloaded(Refused):
    status, code, outcome = 429, grpc.StatusCode.RESOURCE_EXHAUSTED, "refused"


class Unavailable(Refused):
    status, code, outcome = 503, grpc.StatusCode.UNAVAILABLE, "failed"


class Late(Refused):
    """The answer did not come in time."""

    status, code, outcome = 504, grpc.StatusCode.DEADLINE_EXCEEDED, "timeout"


class Unauthenticated(Refused):
    status, code, outcome = 401, grpc.StatusCode.UNAUTHENTICATED, "invalid"
