"""Do nodes that wait for nobody stay together, on a link much slower than a step?"""
