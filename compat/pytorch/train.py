from bootstrap import run

run("pytorch", "train")
