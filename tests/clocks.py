"""Wall clocks under the tests' control: build/clocked/trainer, the product with another clock (clock.c), reads them."""

import pathlib
import struct


class Clocks:
    """A clock for each of these members of a cluster, which must be started later. program: build/clocked/trainer."""

    def __init__(self, program, cluster, names):
        self.files = {name: pathlib.Path(cluster.folder) / f"{name.replace(' ', '')}.clock" for name in names}
        for name, file in self.files.items():
            file.write_bytes(struct.pack("d", 0))
            cluster.programs[name] = program
            cluster.environments[name] = {"TEST_CLOCK": str(file)}

    def ahead(self, name):
        """Sets the seconds by which it is ahead; negative: behind."""
        return struct.unpack("d", self.files[name].read_bytes())[0]

    def set(self, name, ahead_s):
        with open(self.files[name], "r+b") as file:
            file.write(struct.pack("d", ahead_s))

    def is_read_by(self, name, process):
        return str(self.files[name]) in pathlib.Path(f"/proc/{process.pid}/maps").read_text()
