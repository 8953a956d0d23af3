"""The constants of both generations, as data: the interface's own name → value."""

from __future__ import annotations

SHARED = {
    # node attributes
    "ARCH": "si/arch",
    "HostName": "si/hostname",
    "RackName": "si/rackname",
    "OS": "si/os",
    "InstanceType": "si/instance-type",
    "FailureDomainZone": "si/zone",
    "FailureDomainRegion": "si/region",
    "LocalImages": "si/local-images",
    "NodePartition": "si/node-partition",
    # allocation attributes
    "ApplicationID": "si/application-id",
    "ContainerImage": "si/container-image",
    "ContainerPorts": "si/container-ports",
    # allocation tags: domains, groups, keys, pods
    "DomainK8s": "kubernetes.io/",
    "DomainYuniKorn": "yunikorn.apache.org/",
    "GroupMeta": "meta/",
    "GroupLabel": "label/",
    "GroupAnnotation": "annotation/",
    "KeyPodName": "podName",
    "KeyNamespace": "namespace",
    "KeyRequiredNode": "requiredNode",
    "CreationTime": "creationTime",
    # core and shim
    "Memory": "memory",
    "CPU": "vcore",
    "AppTagNamespaceResourceQuota": "namespace.resourcequota",
    "AppTagNamespaceResourceGuaranteed": "namespace.resourceguaranteed",
    "AppTagCreateForce": "application.create.force",
}

CURRENT_CONSTANTS = {
    **SHARED,
    "DomainYuniKornInternal": "internal.yunikorn.apache.org/",
    "Foreign": "foreign",
    "AllocTypeStatic": "static",
    "AllocTypeDefault": "default",
    "AppTagNamespaceResourceMaxApps": "namespace.resourcemaxapps",
}

PREVIOUS_CONSTANTS = {
    **SHARED,
    "KeyAllowPreemption": "allowPreemption",
    "AppTagStateAwareDisable": "application.stateaware.disable",
    "NodeReadyAttribute": "ready",
}
