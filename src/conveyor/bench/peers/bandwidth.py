"""The machine's memory bandwidth: `a + b -> c` on arrays far larger than the caches, counted in GB."""

from protocol import serve, settings

MEBIBYTES = 128


def main() -> None:
    import torch

    torch.set_num_threads(settings()["threads"])
    a, b = torch.ones(2, MEBIBYTES * 2**18)
    out = torch.empty_like(a)
    serve(lambda: torch.add(a, b, out=out), 3 * a.nbytes / 1e9)


if __name__ == "__main__":
    main()
