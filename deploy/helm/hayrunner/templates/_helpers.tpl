{{- define "hayrunner.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "hayrunner.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "hayrunner.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "hayrunner.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Names that get a suffix: shortened first, so that the suffix always survives. */}}
{{- define "hayrunner.initName" -}}
{{- printf "%s-init" (include "hayrunner.fullname" . | trunc 58 | trimSuffix "-") }}
{{- end }}

{{- define "hayrunner.filesName" -}}
{{- printf "%s-agents" (include "hayrunner.fullname" . | trunc 56 | trimSuffix "-") }}
{{- end }}

{{- define "hayrunner.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "hayrunner.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "hayrunner.image" -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}

{{- define "hayrunner.selectorLabels" -}}
app.kubernetes.io/name: {{ include "hayrunner.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "hayrunner.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "hayrunner.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* The durable consumer of one agent: {namespace}~{agent}, as `hayrunner init` names it. */}}
{{- define "hayrunner.consumer" -}}
{{- printf "%s~%s" .namespace .agent }}
{{- end }}

{{/* As KEDA's operator resolves it: from another namespace than the release's. */}}
{{- define "hayrunner.monitoringEndpoint" -}}
{{- default (printf "nats-headless.%s.svc:8222" .Release.Namespace) .Values.nats.monitoring.endpoint }}
{{- end }}

{{- define "hayrunner.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "hayrunner.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end }}

{{/* How a container reaches NATS: the same for the workers and the init job. */}}
{{- define "hayrunner.natsEnv" -}}
- name: HAYRUNNER_NATS_URL
  value: {{ .Values.nats.url | quote }}
- name: HAYRUNNER_NAMESPACE
  value: {{ .Values.namespace | quote }}
- name: HAYRUNNER_REPLICAS
  value: {{ .Values.nats.replicas | int | quote }}
{{- if .Values.nats.credentials.secretName }}
- name: HAYRUNNER_NATS_CREDENTIALS
  value: /etc/hayrunner/nats/nats.creds
{{- end }}
{{- with .Values.nats.tls }}
{{- if .secretName }}
{{- range $name, $file := dict "HAYRUNNER_NATS_TLS_CA" (ternary "ca.crt" "" (ne .caKey "")) "HAYRUNNER_NATS_TLS_CERT" (ternary "tls.crt" "" (ne .certKey "")) "HAYRUNNER_NATS_TLS_KEY" (ternary "tls.key" "" (ne .keyKey "")) }}
{{- if $file }}
- name: {{ $name }}
  value: /etc/hayrunner/tls/{{ $file }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.nats.auth }}
{{- $secret := .secretName }}
{{- range $name, $key := dict "HAYRUNNER_NATS_TOKEN" .tokenKey "HAYRUNNER_NATS_USER" .userKey "HAYRUNNER_NATS_PASSWORD" .passwordKey }}
{{- if and $secret $key }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ $key }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hayrunner.baseVolumeMounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.nats.credentials.secretName }}
- name: nats-credentials
  mountPath: /etc/hayrunner/nats
  readOnly: true
{{- end }}
{{- if .Values.nats.tls.secretName }}
- name: nats-tls
  mountPath: /etc/hayrunner/tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "hayrunner.baseVolumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 256Mi
{{- with .Values.nats.credentials }}
{{- if .secretName }}
- name: nats-credentials
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: nats.creds
{{- end }}
{{- end }}
{{- with .Values.nats.tls }}
{{- if .secretName }}
- name: nats-tls
  secret:
    secretName: {{ .secretName }}
    defaultMode: 0440
    items:
      {{- range $path, $key := dict "ca.crt" .caKey "tls.crt" .certKey "tls.key" .keyKey }}
      {{- if $key }}
      - key: {{ $key }}
        path: {{ $path }}
      {{- end }}
      {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "hayrunner.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
