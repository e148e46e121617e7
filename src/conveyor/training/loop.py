"""The training loop: slots -> gradients -> update -> events."""

from collections.abc import Iterator

import torch

from conveyor.data.batch import Batch
from conveyor.training.events import Events
from conveyor.training.handover import Handover
from conveyor.training.health import check_finite, watched
from conveyor.training.late import Late
from conveyor.training.loss import BAD
from conveyor.training.polling import Polling
from conveyor.training.session import Session
from conveyor.training.signals import Signals
from conveyor.training.stopping import Reason


def train(session: Session, batches: Iterator[Batch], events: Events, signals: Signals, handover: Handover) -> None:
    """Run `session` to its last update, or until it has a reason to stop. Events happen after updates, never inside."""
    spec, world = session.spec, session.world
    session.lane.module.train()
    session.stopping.start()
    leave = torch.zeros(8, dtype=torch.float64, device=world.device)
    late = Late(session, events)
    signals.on_leave(late.begin)
    polling = Polling(session.update, every=world.device.type == "cpu")
    handover.begin()
    while session.update < spec.length.updates_total and session.reason is None:
        if session.release is not None and session.update == spec.release:
            session.release()
            handover.renew()
        updater, rate = session.updater, spec.schedule.rate(session.update)
        with watched(session), late.computing():
            tally = session.lane.gradients(batches, session.update, updater.loss_scale.value)

        # What the workers must agree on: a loss that is not finite, a signal, the time, a removed run folder, a checkpoint
        # that is due. On a GPU reading it would make the host wait for the device, so there it is read about once a second.
        leave[0] += tally[:, BAD].sum()
        save, done = False, session.update + 1
        if polling.due(done) or done % spec.events.updates_per_call == 0 or done == spec.length.updates_total:
            leave[1] = float(signals.received is not None)
            leave[2] = float(world.is_main and session.stopping.out_of_time())
            leave[3] = float(events.folder_is_gone())
            leave[4] = float(world.is_main and events.save_is_due())
            leave[5] = float(events.stop_is_asked())
            leave[6] = float(signals.start_again)
            leave[7] = polling.seconds() if world.is_main else 0.0
            world.sum_over_all([leave, tally] if world.device.type == "cpu" else [leave])
            not_finite, interrupted, out_of_time, gone, save, stop, again, seconds = leave.tolist()
            polling.answered(done, seconds)
            check_finite(not_finite, session, rate)
            if interrupted:
                signals.agree(world)
            reasons = {
                Reason.FOLDER_GONE: gone,
                Reason.INTERRUPTED: interrupted,
                Reason.TIME: out_of_time,
                Reason.CALLBACK: stop,
                Reason.START_AGAIN: again,
            }
            session.reason = next((reason for reason, told in reasons.items() if told), None)
            leave.zero_()

        updater.apply(session.update, rate)
        session.timing.mark("update")
        session.meter.add(tally)
        session.update += 1
        updater.changing = False
        handover.after_update()
        if session.reason in (Reason.FOLDER_GONE, Reason.START_AGAIN):
            return
        events.after_update(rate, save=bool(save))
        handover.after_events()
