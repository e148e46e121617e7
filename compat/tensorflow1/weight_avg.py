from bootstrap import run

run("tensorflow1", "weight_avg")
