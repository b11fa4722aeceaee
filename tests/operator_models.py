"""Manifests of Kubernetes operators, checked with models made from the operators' published schemas. Run by the Python
of build/venv-deploy: it gets a list of manifests as JSON, and returns the errors of each.

A model ignores what it does not know, so the parsed result must contain the whole manifest.
"""

import json
import sys

from cloudcoil.models.prometheus_operator import v1 as monitoring
from kubeflow_trainer_api import models
from pydantic import ValidationError

MODELS = {"JobSet": models.JobsetV1alpha2JobSet, "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
          "TrainJob": models.TrainerV1alpha1TrainJob, "ServiceMonitor": monitoring.ServiceMonitor}


def plain(model):
    return model.to_dict() if hasattr(model, "to_dict") else model.model_dump(by_alias=True, mode="json")


def unknown(given, taken, path):
    """What the one has and the other lacks."""
    if isinstance(given, dict) and isinstance(taken, dict):
        return [found for key, value in given.items() for found in
                (unknown(value, taken[key], f"{path}.{key}") if key in taken else [f"{path}.{key}"])]
    if isinstance(given, list) and isinstance(taken, list) and len(given) == len(taken):
        return [found for i, pair in enumerate(zip(given, taken)) for found in unknown(*pair, f"{path}[{i}]")]
    return [] if given == taken else [path]


def faults(manifest):
    try:
        taken = plain(MODELS[manifest["kind"]].model_validate(manifest))
    except ValidationError as error:
        return [str(error)]
    return unknown(manifest, taken, manifest["kind"])


print(json.dumps([faults(manifest) for manifest in json.load(sys.stdin)]))
