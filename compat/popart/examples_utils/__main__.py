from bootstrap import benchmark

benchmark()
