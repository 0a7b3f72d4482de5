{{- define "obi.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "obi.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "obi.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "obi.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Cluster-wide names have the namespace in them: two releases of one name do not collide. */}}
{{- define "obi.clustername" -}}
{{- printf "%s-%s" .Release.Namespace (include "obi.fullname" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Selectors never change. */}}
{{- define "obi.selector" -}}
app.kubernetes.io/name: {{ include "obi.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "obi.labels" -}}
{{ include "obi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "obi.serviceaccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "obi.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "obi.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "obi.port" -}}
{{- splitList ":" .Values.listen | last -}}
{{- end -}}

{{/* The configuration with what the chart knows; what values say wins. */}}
{{- define "obi.config" -}}
{{- $own := dict "web" (dict "listen" .Values.listen) "capture" (dict "statistics" false) -}}
{{- if .Values.slo.objectives -}}
{{- $own = merge $own (dict "slo" (dict "files" (list "/etc/obi/objectives.yaml"))) -}}
{{- end -}}
{{- mergeOverwrite $own (deepCopy .Values.config) | toYaml -}}
{{- end -}}

{{/* Whose names calls have: `config.kubernetes.peers`. */}}
{{- define "obi.peers" -}}
{{- dig "kubernetes" "peers" "pods" .Values.config -}}
{{- end -}}

{{/* Whether the API server is asked for anything. */}}
{{- define "obi.asks" -}}
{{- or .Values.kubernetes.apiServer (eq (include "obi.peers" .) "services") -}}
{{- end -}}

{{- define "obi.probescheme" -}}
{{- if .Values.tls.secretName }}, scheme: HTTPS{{ end }}
{{- end }}

{{- define "obi.scrapescheme" -}}
{{- if .Values.tls.secretName -}}
scheme: https
{{- with .Values.tls.scrape }}
tlsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
