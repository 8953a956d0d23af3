{{/* Labels of all objects. app: yunikorn keeps YuniKorn's admission controller from giving these pods to a scheduler that
     does not run without them. */}}
{{- define "muster.labels" -}}
app: yunikorn
app.kubernetes.io/name: muster
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
release: {{ .Release.Name }}
{{- end -}}

{{/* Labels by which a component's pods are found: (dict "root" $ "component" "…"). */}}
{{- define "muster.selector" -}}
app: yunikorn
component: {{ .component }}
release: {{ .root.Release.Name }}
{{- end -}}

{{- define "muster.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}

{{- define "muster.rmID" -}}
{{- get .Values.yunikornDefaults "service.clusterId" | default "mycluster" -}}
{{- end -}}

{{- define "muster.gateway" -}}
{{- if .Values.gateway.address -}}{{ .Values.gateway.address }}{{- else -}}
muster.{{ .Release.Namespace }}.svc:9090
{{- end -}}
{{- end -}}

{{/* Kubernetes' level "restricted". The argument is the number of user and group. */}}
{{- define "muster.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "muster.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* A quantity of memory in bytes. */}}
{{- define "muster.bytes" -}}
{{- $text := . | toString -}}
{{- $factor := 1 -}}
{{- range $suffix, $size := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- if hasSuffix $suffix $text -}}
{{- $text = trimSuffix $suffix $text -}}
{{- $factor = $size -}}
{{- end -}}
{{- end -}}
{{- mulf (float64 $text) $factor | int64 -}}
{{- end -}}

{{/* Go's limits, from a set of values with resources, goMemoryLimitPercentage and goGC. */}}
{{- define "muster.goEnv" -}}
{{- if and .goMemoryLimitPercentage (dig "limits" "memory" "" .resources) }}
- name: GOMEMLIMIT
  value: {{ divf (mulf (include "muster.bytes" .resources.limits.memory | float64) .goMemoryLimitPercentage) 100 | int64 | quote }}
{{- end }}
- name: GOGC
  value: {{ .goGC | quote }}
{{- end -}}

{{- define "muster.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The affinity of the values; without one, pods of a component prefer different nodes. */}}
{{- define "muster.affinity" -}}
affinity:
{{- if .affinity }}
  {{- toYaml .affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "muster.selector" . | nindent 14 }}
{{- end }}
{{- end -}}

{{- define "muster.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Settings of the gateway, in a list of variables. */}}
{{- define "muster.gatewayEnv" -}}
- name: MUSTER_GATEWAY__GRPC_ADDRESS
  value: 0.0.0.0:9090
- name: MUSTER_GATEWAY__HTTP_ADDRESS
  value: 0.0.0.0:9080
{{- if eq .Values.access.mode "open" }}
- name: MUSTER_GATEWAY__GRPC_OPEN
  value: "true"
{{- else }}
- name: MUSTER_GATEWAY__TLS__CERTIFICATE
  value: /etc/muster/gateway/tls.crt
- name: MUSTER_GATEWAY__TLS__KEY
  value: /etc/muster/gateway/tls.key
# YuniKorn's admission controller and web UI know no TLS.
- name: MUSTER_GATEWAY__TLS__HTTP
  value: "false"
- name: MUSTER_GATEWAY__POLICY_FILE
  value: /etc/muster/policy/policy.toml
{{- end }}
{{- if eq .Values.access.mode "certificates" }}
- name: MUSTER_GATEWAY__TLS__CLIENT_CA
  value: /etc/muster/gateway/ca.crt
{{- end }}
{{- if eq .Values.access.mode "token" }}
- name: MUSTER_GATEWAY__TOKENS
  value: {{ dict .Values.access.shimIdentity (dict "role" "read" "token_file" "/etc/muster/token/token") | toJson | quote }}
{{- end }}
{{- if eq .Values.access.http "read" }}
- name: MUSTER_GATEWAY__HTTP_OPEN
  value: "true"
{{- end }}
{{- end -}}

{{- define "muster.gatewayMounts" -}}
{{- if ne .Values.access.mode "open" }}
- {name: gateway-tls, mountPath: /etc/muster/gateway, readOnly: true}
- {name: policy, mountPath: /etc/muster/policy, readOnly: true}
{{- end }}
{{- if eq .Values.access.mode "token" }}
- {name: token, mountPath: /etc/muster/token, readOnly: true}
{{- end }}
{{- end -}}

{{- define "muster.gatewayVolumes" -}}
{{- if ne .Values.access.mode "open" }}
- name: gateway-tls
  secret: {secretName: {{ .Values.access.gatewaySecret }}, defaultMode: 0440}
- name: policy
  configMap: {name: muster-policy}
{{- end }}
{{- if eq .Values.access.mode "token" }}
- name: token
  secret: {secretName: {{ .Values.access.shimSecret }}, defaultMode: 0440, items: [{key: token, path: token}]}
{{- end }}
{{- end -}}

{{/* Of all of Muster's processes. */}}
{{- define "muster.commonEnv" -}}
# A thread of its own answers here while the process lives, also beside long work.
- name: MUSTER_PROCESS__LIVE_ADDRESS
  value: 0.0.0.0:9079
{{- range $name, $value := .Values.muster.settings }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .Values.muster.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "muster.webContainer" -}}
- name: web
  image: {{ include "muster.image" (dict "root" . "image" .Values.web.image) }}
  imagePullPolicy: {{ .Values.web.image.pullPolicy }}
  ports:
    - {name: http2, containerPort: {{ .Values.service.portWeb }}, protocol: TCP}
  env:
    {{- include "muster.goEnv" .Values.web | nindent 4 }}
  resources:
    {{- toYaml .Values.web.resources | nindent 4 }}
  securityContext:
    {{- mergeOverwrite (include "muster.containerSecurity" . | fromYaml) .Values.webSecurityContext | toYaml | nindent 4 }}
{{- end -}}
