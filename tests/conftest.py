import os

# torch's threads wait for one another by spinning: where tests run side by side, one that gets no core holds up the
# other for whole time slices, and small models take fifty times as long. Set before anything imports torch; engines
# that load a model set their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
