from bootstrap import run

run("popart", "resnet_synthetic_benchmark")
