from bootstrap import run

run("tensorflow2", "send_request")
