"""send_request.py and export_for_serving.py: export the model of a configuration, serve it, send requests."""

from pathlib import Path

from conveyor.dialects.translation import Translation
from conveyor.errors import UserError


def run(translation: Translation) -> int:
    """Run an `export` or a `request` that starts from options instead of a stored run; returns the exit code."""
    return _export(translation) if translation.command == "export" else _request(translation)


def _export(translation: Translation) -> int:
    """Preprocessing is inside the exported graph; the batch is fixed to the micro-batch."""
    from conveyor.infer.export import export
    from conveyor.infer.load import from_options, load

    settings, options = translation.settings, translation.options
    checkpoint = settings["checkpoint"]
    loaded = load(checkpoint) if checkpoint else from_options(options, Path(settings["folder"]).resolve().name)
    exported = export(loaded, settings["folder"], settings["form"], batch=options.batch.micro_batch_size)
    for note in exported.notes:
        print(note)
    print(exported.text())
    return 0


def _request(translation: Translation) -> int:
    from conveyor.request.client import LoadSettings, export_and_request

    settings = dict(translation.settings)
    checkpoint, form = settings.pop("checkpoint"), settings.pop("form")
    folder = Path.cwd() / str(settings["name"]).replace("/", "-")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: the model would be exported there, move it away")
    load = LoadSettings(**{**settings, "name": folder.name})
    report = export_and_request(
        translation.options, folder, load, checkpoint=checkpoint, form=form, say=lambda line: print(line, flush=True)
    )
    print("\n".join(report.lines()))
    return 0 if report.ok else 1
