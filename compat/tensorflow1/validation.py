from bootstrap import run

run("tensorflow1", "validation")
