"""A program for the environment `cluster` of `make peers`: holds manifests on standard input against the projects' own types.

Kubeflow Trainer's and JobSet's types ignore unknown fields, so a field is known when it survives the round trip. Asked for
`crds`, it holds each document against its CRD in the folder CONVEYOR_CRDS: the schema with unknown fields forbidden (as the
server prunes them), and the CEL rules that do not compare with an older object.
"""

import copy
import functools
import os
import sys
from pathlib import Path
from typing import Any

import yaml


def by_types(document: dict[str, Any]) -> None:
    from kubeflow_trainer_api import models

    known = {
        "TrainJob": models.TrainerV1alpha1TrainJob,
        "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
        "JobSet": models.JobsetV1alpha2JobSet,
        "Secret": None,
        "PyTorchJob": None,  # a template of a pod is all that it shares with these
    }
    kind = known[document["kind"]]
    if kind is not None:
        again = kind.from_dict(copy.deepcopy(document)).to_dict()
        assert again == document, f"{document['kind']}: {again} is left of {document}"


def by_crd(document: dict[str, Any], folder: Path) -> None:
    import jsonschema

    for path, crd in definitions(folder).items():
        if crd.get("kind") != "CustomResourceDefinition" or crd["spec"]["names"]["kind"] != document["kind"]:
            continue
        version = document["apiVersion"].rpartition("/")[2]
        (schema,) = (one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == version)
        jsonschema.validate(document, closed(schema))
        print(f"{document['kind']}: {path.name}, {cel(schema, document, document['kind'])} CEL rules")
        return
    assert document["kind"] == "Secret", f"no CRD of {document['kind']} in {folder}"


@functools.cache
def definitions(folder: Path) -> dict[Path, dict[str, Any]]:
    """The YAML files of `folder`; read once, and in C where that is there: a CRD has 10,000 lines."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {path: yaml.load(path.read_text(), Loader=loader) for path in sorted(folder.glob("*.yaml"))}


def closed(schema: Any) -> Any:
    """The same schema without unknown fields; quantities may be numbers or texts."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    fields = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if fields and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["additionalProperties"] = False
    return found


def cel(schema: dict[str, Any], value: Any, where: str) -> int:
    """The number of rules that hold for `value` and its parts."""
    import celpy

    count = 0
    for rule in schema.get("x-kubernetes-validations", []):
        if "oldSelf" in rule["rule"]:
            continue
        environment = celpy.Environment()
        program = environment.program(environment.compile(rule["rule"]))
        assert program.evaluate({"self": celpy.json_to_cel(value)}), f"{where}: {rule.get('message') or rule['rule']}"
        count += 1
    if isinstance(value, dict):
        parts = schema.get("properties") or {}
        count += sum(cel(parts[key], part, f"{where}.{key}") for key, part in value.items() if key in parts)
    if isinstance(value, list):
        count += sum(cel(schema.get("items") or {}, part, f"{where}[{index}]") for index, part in enumerate(value))
    return count


def main(kind: str) -> None:
    for document in filter(None, yaml.safe_load_all(sys.stdin.read())):
        if kind == "sky":
            import sky

            task = sky.Task.from_yaml_config(copy.deepcopy(document))
            task.validate_run()
            assert (task.name, task.num_nodes) == (document["name"], document["num_nodes"])
            continue
        if kind == "crds":
            by_crd(document, Path(os.environ["CONVEYOR_CRDS"]))
        else:
            by_types(document)
    print("taken")


if __name__ == "__main__":
    main(sys.argv[1])
