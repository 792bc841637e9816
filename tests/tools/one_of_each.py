"""Every exported strategy, once."""

import flockstep as fs


def one_of_each(period: int, gamma: float | None = None) -> list[fs.Strategy]:
    """With this period where it has one, and this gamma."""
    return [
        fs.DataParallel(),
        fs.LocalSGD(period=period),
        fs.CELGC(period=period, gamma=gamma),
        fs.CELGCUpdate(period=period, gamma=gamma or 1.0),
        fs.Episode(period=period, gamma=gamma),
        fs.EpisodePlus(period=period, gamma=gamma, sampled=1),
        fs.CoCoD(period=period),
        fs.OverlapLocalSGD(period=period),
        fs.HPSGD(period=period),
        fs.DiLoCo(period=period),
        fs.EagerDiLoCo(period=period),
        fs.StreamingDiLoCo(period=2 * period, fragments=2, delay=1),
        fs.NoLoCo(period=period),
        fs.Gossip(),
        fs.Choco(),
        fs.SGP(),
        fs.ADPSGD(),
        fs.Swarm(period=period),
        fs.SwarmPull(period=period),
        fs.SwarmPairs(period=period),
        fs.DPSGD(period=period),
        fs.SClipEF(),
        fs.SClipEFNetwork(),
        fs.GTNSGDm(),
    ]
