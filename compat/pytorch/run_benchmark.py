import os, sys; sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import bootstrap
bootstrap.run("pytorch", "run_benchmark")
