from bootstrap import run

run("tensorflow1", "inference_embedded")
