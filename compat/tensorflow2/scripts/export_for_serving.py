from bootstrap import run

run("tensorflow2", "export_for_serving")
