{{/* Name of the chart, for labels. */}}
{{- define "muster.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the release's objects. */}}
{{- define "muster.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := include "muster.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels that the operator's pods are selected by; they never change. */}}
{{- define "muster.selectorLabels" -}}
app.kubernetes.io/name: {{ include "muster.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{/* Labels of every object. `managed-by: Helm` tells them from what the operator makes. */}}
{{- define "muster.labels" -}}
{{ include "muster.ownLabels" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "muster.ownLabels" -}}
{{ include "muster.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: muster
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* Image reference of (dict "root" $ "image" IMAGE-VALUES); the digest wins over the tag. */}}
{{- define "muster.image" -}}
{{- $reference := .image.repository }}
{{- with .root.Values.image.registry }}
{{- $reference = printf "%s/%s" (trimSuffix "/" .) $reference }}
{{- end }}
{{- if .image.digest }}
{{- printf "%s@%s" $reference .image.digest }}
{{- else }}
{{- printf "%s:%s" $reference (default .root.Chart.AppVersion .image.tag) }}
{{- end }}
{{- end }}

{{- define "muster.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "muster.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: name the service account, since serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "muster.tokenKeySecret" -}}
{{- default (printf "%s-token-key" (include "muster.fullname" .)) .Values.tokenKey.existingSecret }}
{{- end }}

{{/*
Annotations of an object of a kind (dict "root" $ "kind" KIND "spec" SPEC) that comes with this same chart. Helm looks all kinds up before it makes the first
object, so at the first install, when the API server does not know the kind yet, the object is a hook; later upgrades
adopt it as a plain part of the release, for which it bears Helm's marks of ownership from the start. A rollback to that
first revision takes the part away, and makes it again as the hook; one that Helm is told to keep ("keep" true) stays as it
is, for the hook would take it away, and with it what people have made of it: a queue's hold, its quotas, its month.
*/}}
{{- define "muster.ownKindAnnotations" -}}
{{- if .root.Capabilities.APIVersions.Has (printf "muster.dev/v1alpha1/%s" .kind) }}
{{- include "muster.refuseSilentAdoption" . }}
{}
{{- else }}
helm.sh/hook: post-install,post-upgrade{{ if not .keep }},post-rollback{{ end }}
helm.sh/hook-delete-policy: before-hook-creation
meta.helm.sh/release-name: {{ .root.Release.Name }}
meta.helm.sh/release-namespace: {{ .root.Release.Namespace }}
{{- end }}
{{- end }}

{{/*
Helm 3 adopts an object without changing it: what the values say otherwise than at the install would be lost without a
word, in this upgrade and in all that say the same. So it is changed by hand once, and loses the mark of a hook: Helm
changes it from then on. Helm 4 applies what it adopts. The API server has filled in defaults, within lists, too.
*/}}
{{- define "muster.refuseSilentAdoption" -}}
{{- $live := lookup "muster.dev/v1alpha1" .kind "" "default" }}
{{- if and $live (hasKey (dig "metadata" "annotations" dict $live) "helm.sh/hook") (semverCompare "<4.0.0-0" .root.Capabilities.HelmVersion.Version) }}
{{- $filled := "\"(capacity|gpuType)\":\"(on-demand)?\"," }}
{{- $there := regexReplaceAll $filled (toJson $live.spec) "" }}
{{- $wanted := regexReplaceAll $filled (toJson (mergeOverwrite (deepCopy $live.spec) (deepCopy .spec))) "" }}
{{- if ne $there $wanted }}
{{- $patch := toJson (dict "metadata" (dict "annotations" (dict "helm.sh/hook" nil)) "spec" .spec) }}
{{- fail (printf "Helm 3 would leave the %s \"default\" as it is, which is not what the values say. Change it by hand this once, and upgrade again:  kubectl patch %s default --type=merge -p '%s'  or, to keep what it has:  kubectl annotate %s default helm.sh/hook-" .kind (lower .kind) $patch (lower .kind)) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Refuses a second release: the kinds, and with them every job, are the whole cluster's, and two operators would each give
the same GPUs away. Kinds that an uninstalled release has left behind are no obstacle. Says nothing to `helm template`.
*/}}
{{- define "muster.refuseSecondRelease" -}}
{{- $kind := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "trainingjobs.muster.dev" }}
{{- $marks := dig "metadata" "annotations" dict $kind }}
{{- $name := get $marks "meta.helm.sh/release-name" }}
{{- $namespace := get $marks "meta.helm.sh/release-namespace" }}
{{- if and $name $namespace (or (ne $name .Release.Name) (ne $namespace .Release.Namespace)) }}
{{- range (lookup "apps/v1" "Deployment" $namespace "").items }}
{{- $labels := default dict .metadata.labels }}
{{- if and (eq (get $labels "app.kubernetes.io/part-of") "muster") (eq (get $labels "app.kubernetes.io/instance") $name) }}
{{- fail (printf "Muster runs in this cluster as release %q in namespace %q, and a cluster has one: upgrade that (helm upgrade %s CHART -n %s), or uninstall it first; namespaces share it by queues" $name $namespace $name $namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Refuses another name for the objects of a release that is there, where what running jobs and the history need would stay
behind under the old one. Says nothing to `helm template`.
*/}}
{{- define "muster.refuseRename" -}}
{{- $name := include "muster.fullname" . }}
{{- $values := .Values }}
{{- $release := .Release.Name }}
{{- range (lookup "apps/v1" "Deployment" .Release.Namespace "").items }}
{{- $labels := default dict .metadata.labels }}
{{- $own := and (eq (get $labels "app.kubernetes.io/part-of") "muster") (eq (get $labels "app.kubernetes.io/instance") $release) }}
{{- $old := .metadata.name }}
{{- if and $own (ne $old $name) }}
{{- $said := printf "nameOverride or fullnameOverride name the objects %q that this release has as %q" $name $old }}
{{- if not $values.tokenKey.existingSecret }}
{{- fail (printf "%s: the launchers of running jobs would no longer know the operator, whose token key lies in the Secret %s-token-key: leave the name, or keep the key by tokenKey.existingSecret=%s-token-key" $said $old $old) }}
{{- end }}
{{- if and (eq $values.history.database "sqlite") (not $values.history.sqlite.existingClaim) }}
{{- fail (printf "%s: the history would begin anew on another volume: leave the name, or keep the volume by history.sqlite.existingClaim=%s-history" $said $old) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "muster.historyClaim" -}}
{{- default (printf "%s-history" (include "muster.fullname" .)) .Values.history.sqlite.existingClaim }}
{{- end }}

{{/* Refuses a history that could not work. */}}
{{- define "muster.refuseHistory" -}}
{{- if and (eq .Values.history.database "sqlite") (gt (int .Values.replicas) 1) }}
{{- fail (printf "history.database is sqlite, a file that one pod alone can write, and replicas is %d: set replicas=1, or history.database=postgresql with history.postgresql.urlSecretRef.name" (int .Values.replicas)) }}
{{- end }}
{{- if and (eq .Values.history.database "postgresql") (not .Values.history.postgresql.urlSecretRef.name) }}
{{- fail "history.database is postgresql: name the Secret with its URL in history.postgresql.urlSecretRef.name" }}
{{- end }}
{{- end }}
