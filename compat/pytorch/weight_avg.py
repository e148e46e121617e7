from bootstrap import run

run("pytorch", "weight_avg")
