from bootstrap import run

run("tensorflow2", "train")
