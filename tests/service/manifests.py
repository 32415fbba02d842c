#!/usr/bin/env python3
"""Checks deploy/kubernetes against Kubernetes' schemas, and that a container there may do nothing it does not need.

Needs PyYAML and kubernetes-validate.
"""
import pathlib
import sys

import kubernetes_validate
import yaml

failed = 0
for file in sorted(pathlib.Path("deploy/kubernetes").glob("*.yaml")):
    for manifest in yaml.safe_load_all(file.read_text()):
        metadata = manifest["metadata"]
        name = f"{file}: {manifest['kind']} {metadata.get('name') or metadata['generateName']}"
        try:
            version = kubernetes_validate.validate(manifest, "1.31", strict=True)
            print(f"{name}: valid for Kubernetes {version}")
        except kubernetes_validate.ValidationError as error:
            failed += 1
            print(f"{name}: {error.message} at {'/'.join(map(str, error.path))}")
        pod = manifest.get("spec", {}).get("template", {}).get("spec")
        if pod:
            assert pod["securityContext"]["runAsNonRoot"] and not pod["automountServiceAccountToken"], pod
            for container in pod.get("initContainers", []) + pod["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] and context["capabilities"] == {"drop": ["ALL"]}, context
                assert container["resources"]["limits"]["memory"], container
                assert ":" in container["image"] and not container["image"].endswith(":latest"), container["image"]
sys.exit(1 if failed else 0)
