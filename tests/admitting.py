"""Admission of a message at once: all its steps, one after another."""

from __future__ import annotations

from muster_core.model.steps import finish
from muster_gateway import admission, callback_admission
from muster_gateway.admission import AdmittedMessage
from muster_gateway.bounded_messages import SIZES, StepSizes
from muster_gateway.callback_admission import AdmittedCallbacks
from muster_gateway.callback_codec import CallbackSubscription
from muster_gateway.settings import AdmissionLimits
from muster_gateway.stream_kind import StreamKind


def rm_id_of(kind: StreamKind, raw: bytes, limits: AdmissionLimits) -> str:
    return finish(admission.rm_id_steps(kind, raw, limits))


def admit(
    kind: StreamKind, raw: bytes, rm_id: str, limits: AdmissionLimits, sizes: StepSizes = SIZES
) -> AdmittedMessage:
    return finish(admission.admission_steps(kind, raw, rm_id, limits, sizes))


def admit_registration(raw: bytes, limits: AdmissionLimits) -> tuple[str, str, bytes]:
    return finish(admission.registration_steps(raw, limits))


def admit_configuration(raw: bytes, limits: AdmissionLimits) -> tuple[str, str, bytes]:
    return finish(admission.configuration_steps(raw, limits))


def hello_of(raw: bytes, rm_id: str | None, limits: AdmissionLimits) -> tuple[str, CallbackSubscription]:
    return finish(callback_admission.hello_steps(raw, rm_id, limits))


def admit_callbacks(raw: bytes, rm_id: str, limits: AdmissionLimits, *, first: bool) -> AdmittedCallbacks:
    return finish(callback_admission.callback_steps(raw, rm_id, limits, first=first))
