"""The well-known keys and values of the scheduler interface, of both generations.

The names are the interface's own in Python's spelling (``HostName`` → ``HOST_NAME``), in the interface's order. What
only the previous generation has is marked [previous], what only the current one has [current]. What Muster does with
each: docs/si-coverage.md, "Constants". Nothing else in the tree may spell one of them (tests/unit/architecture).
"""

from __future__ import annotations

from typing import Final

# ---- keys of NodeInfo.attributes ---------------------------------------------------------------------------------

ARCH: Final = "si/arch"
HOST_NAME: Final = "si/hostname"
RACK_NAME: Final = "si/rackname"
OS: Final = "si/os"
INSTANCE_TYPE: Final = "si/instance-type"
FAILURE_DOMAIN_ZONE: Final = "si/zone"
FAILURE_DOMAIN_REGION: Final = "si/region"
LOCAL_IMAGES: Final = "si/local-images"
NODE_PARTITION: Final = "si/node-partition"

# ---- attributes of allocations -----------------------------------------------------------------------------------

APPLICATION_ID: Final = "si/application-id"
CONTAINER_IMAGE: Final = "si/container-image"
CONTAINER_PORTS: Final = "si/container-ports"

# ---- keys of allocation tags: domain, group (perhaps), key -------------------------------------------------------

DOMAIN_K8S: Final = "kubernetes.io/"
DOMAIN_YUNIKORN: Final = "yunikorn.apache.org/"
DOMAIN_YUNIKORN_INTERNAL: Final = "internal.yunikorn.apache.org/"  # [current]

GROUP_META: Final = "meta/"
GROUP_LABEL: Final = "label/"
GROUP_ANNOTATION: Final = "annotation/"

KEY_POD_NAME: Final = "podName"
KEY_NAMESPACE: Final = "namespace"
KEY_REQUIRED_NODE: Final = "requiredNode"
KEY_ALLOW_PREEMPTION: Final = "allowPreemption"  # [previous]

CREATION_TIME: Final = "creationTime"  # seconds since the epoch, as text
FOREIGN: Final = "foreign"  # [current], as the two values that it may have
ALLOC_TYPE_STATIC: Final = "static"
ALLOC_TYPE_DEFAULT: Final = "default"

# ---- names of resource types -------------------------------------------------------------------------------------

MEMORY: Final = "memory"  # bytes
CPU: Final = "vcore"  # millicores

# ---- keys of AddApplicationRequest.tags --------------------------------------------------------------------------

APP_TAG_NAMESPACE_RESOURCE_QUOTA: Final = "namespace.resourcequota"
APP_TAG_NAMESPACE_RESOURCE_GUARANTEED: Final = "namespace.resourceguaranteed"
APP_TAG_NAMESPACE_RESOURCE_MAX_APPS: Final = "namespace.resourcemaxapps"  # [current]
APP_TAG_STATE_AWARE_DISABLE: Final = "application.stateaware.disable"  # [previous]
APP_TAG_CREATE_FORCE: Final = "application.create.force"

# ---- the previous generation's key of NodeInfo.attributes that has no prefix -------------------------------------

NODE_READY_ATTRIBUTE: Final = "ready"  # [previous]: "true" or "false"

# ---- put together as resource managers send them -----------------------------------------------------------------

REQUIRED_NODE_TAG: Final = DOMAIN_YUNIKORN + KEY_REQUIRED_NODE  # of an allocation
K8S_CREATION_TIME_TAG: Final = DOMAIN_K8S + GROUP_META + CREATION_TIME  # of an allocation, beside CREATION_TIME
APP_CREATION_TIME_TAG: Final = DOMAIN_YUNIKORN + CREATION_TIME  # of an application
APP_NAMESPACE_TAG: Final = KEY_NAMESPACE  # of an application: the built-in placement rule names its queue by it
