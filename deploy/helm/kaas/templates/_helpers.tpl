{{- define "kaas.labels" -}}
app.kubernetes.io/name: kaas
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kaas.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- define "kaas.podSecurity" -}}
automountServiceAccountToken: false
terminationGracePeriodSeconds: 15
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.userId }}
  runAsGroup: {{ .Values.userId }}
  fsGroup: {{ .Values.userId }}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kaas.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* What the Job needs is there before it: hooks, in order of their weights. Without a Job nothing is a hook. */}}
{{- define "kaas.beforeNodes" -}}
{{- if .root.Values.prewarm.enabled }}
annotations:
  helm.sh/hook: pre-install,pre-upgrade,pre-rollback
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation
{{- end }}
{{- end }}

{{/* A value in TOML: text and lists of text as JSON has them, tables inline. */}}
{{- define "kaas.toml" -}}
{{- if kindIs "map" . -}}
{ {{- $pairs := list -}}
{{- range $name, $value := . -}}
{{- $pairs = append $pairs (printf "%s = %s" $name (toJson $value)) -}}
{{- end -}}
{{- join ", " $pairs -}} }
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end }}

{{- define "kaas.configuration" -}}
# Probes and metrics, and nothing else, for whoever reaches the pod.
monitoring_address = "0.0.0.0:9464"
{{- with .Values.configuration }}
{{ . | trim }}
{{- end }}
{{- range .Values.remoteTiers }}

[[remote_tiers]]
{{- range $field, $value := . }}
{{ $field }} = {{ include "kaas.toml" $value }}
{{- end }}
{{- end }}
{{- end }}
