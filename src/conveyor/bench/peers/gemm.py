"""The machine's matrix product, float32 or bfloat16: the limit that the others' arithmetic is compared with."""

from protocol import serve, settings

SIZE = 2048


def main() -> None:
    import torch

    asked = settings()
    torch.set_num_threads(asked["threads"])
    dtype = torch.bfloat16 if asked.get("half") else torch.float32
    a, b = torch.randn(2, SIZE, SIZE).to(dtype)
    out = torch.empty(SIZE, SIZE, dtype=dtype)

    def step() -> None:
        for _ in range(asked["products"]):
            torch.mm(a, b, out=out)

    serve(step, asked["products"] * 2 * SIZE**3 / 1e9)


if __name__ == "__main__":
    main()
