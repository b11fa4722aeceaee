"""Keys and versions as people find them on their machines."""

from field.case import Case, fails

PS = "trainer --job_name=ps --task_index=0 --ps_hosts=127.0.0.1:1 --worker_hosts=127.0.0.1:2 --fleet_key=k"
RUN = "trainer --config=config.json --data_source=synthetic --train_steps=1"
CONFIG = '{"fleet": {"name": "north", "version": 1}}'



def refuses(*texts):
    """Exit status 2, as for any config that cannot be used, and what it says."""
    def check(result):
        assert result.status == 2 and all(text in result.stderr for text in texts), (result.status, result.end)
    check.of_failure = True
    return check


CASES = [
    Case("key_without_its_secret", "WireGuard's mac1: what recognises members must not be derivable from what is sent",
         {}, ["trainer keygen --out=k", "sed -i /BEGIN.TRAINER/,/END.TRAINER/d k", PS],
         [fails("k: holds no handshake secret", "trainer keygen")]),
    Case("below_what_was_settled", "The Update Framework, 5.3: a rollback attack shows an older version as the latest",
         {"config.json": CONFIG, "config.json.d/current": "1\n", "config.json.d/floor": "2\n"}, [RUN],
         [refuses("version 1 of the config is below version 2", "remove config.json.d/floor")]),
    Case("floor_that_is_damaged", "SQLite, etcd: a damaged record is an error with what to do, and no reason to go on",
         {"config.json": CONFIG, "config.json.d/floor": "2 #00000000\n"}, [RUN],
         [refuses("config.json.d/floor: holds no version number", "or remove it")]),
]
