from bootstrap import run

run("pytorch", "validate")
