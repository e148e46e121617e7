from bootstrap import run

run("pytorch", "run_benchmark")
