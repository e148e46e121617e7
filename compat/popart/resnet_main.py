from bootstrap import run

run("popart", "resnet_main")
