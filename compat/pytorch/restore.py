from bootstrap import run

run("pytorch", "restore")
